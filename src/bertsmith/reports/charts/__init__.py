"""Charts as SVG: inline in a page (`Markup`, colored by its style sheet) or as a file of their own (`bytes`).

- axes.py: SVG elements, ticks, ranges, and axes with linear or logarithmic scales.
- lines.py: line, bar and log-log charts.
- scatter.py: labeled points with error bars, and square panels of projected vectors.
- heat_map.py: matrices as colored cells.
- intervals.py: a score with its interval in a table cell, and scores of several kinds in a row.
"""

from .axes import COLORS, FULL_WIDTH, HALF_WIDTH, compute_axis_range, compute_ticks, format_compact
from .heat_map import heat_image, heat_map
from .intervals import dumbbell_chart, whisker
from .lines import MAX_POINTS, Series, bar_chart, downsample, extract_points, line_chart, loglog_chart
from .scatter import LabeledPoint, Marker, project_pca, scatter_chart, scatter_panel

__all__ = [
    "COLORS",
    "FULL_WIDTH",
    "HALF_WIDTH",
    "MAX_POINTS",
    "LabeledPoint",
    "Marker",
    "Series",
    "bar_chart",
    "compute_axis_range",
    "compute_ticks",
    "downsample",
    "dumbbell_chart",
    "extract_points",
    "format_compact",
    "heat_image",
    "heat_map",
    "line_chart",
    "loglog_chart",
    "project_pca",
    "scatter_chart",
    "scatter_panel",
    "whisker",
]
