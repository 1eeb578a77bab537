"""Charts as SVG: inline in a page (`Chart`, colored by its style sheet) or in a file of their own (`bytes`).

- chart.py: a chart with its title and legend, and files of charts; png.py: their pixels.
- axes.py: SVG elements, ticks, ranges, and axes with linear or logarithmic scales.
- lines.py: line, bar and log-log charts.
- scatter.py: labeled points with error bars, and square panels of projected vectors.
- heat_map.py: matrices as colored cells, alone or in a grid, and tables of colored values.
- token_flow.py: tokens of a text, colored.
- intervals.py: a score with its interval in a table cell, and scores of several kinds in a row.
"""

from .axes import COLORS, FULL_WIDTH, HALF_WIDTH, compute_axis_range, compute_ticks, format_compact
from .chart import SVG_MARK, Chart, LegendEntry, draw_file, empty_chart, svg_file
from .heat_map import heat_grid, heat_image, heat_map, value_map
from .intervals import dumbbell_chart, whisker
from .lines import MAX_POINTS, Series, bar_chart, downsample, extract_points, line_chart, loglog_chart
from .png import PNG_MARK, check_png, to_png
from .scatter import LabeledPoint, Marker, project_pca, scatter_chart, scatter_panel
from .token_flow import FlowToken, TokenFlow

__all__ = [
    "COLORS",
    "FULL_WIDTH",
    "HALF_WIDTH",
    "MAX_POINTS",
    "PNG_MARK",
    "SVG_MARK",
    "Chart",
    "FlowToken",
    "LabeledPoint",
    "LegendEntry",
    "Marker",
    "Series",
    "TokenFlow",
    "bar_chart",
    "check_png",
    "compute_axis_range",
    "compute_ticks",
    "downsample",
    "draw_file",
    "dumbbell_chart",
    "empty_chart",
    "extract_points",
    "format_compact",
    "heat_grid",
    "heat_image",
    "heat_map",
    "line_chart",
    "loglog_chart",
    "project_pca",
    "scatter_chart",
    "scatter_panel",
    "svg_file",
    "to_png",
    "value_map",
    "whisker",
]
