"""The old place of `charts.loglog_chart`, which benchmarks/scaling.py still imports from here."""

from .charts import loglog_chart

__all__ = ["loglog_chart"]
