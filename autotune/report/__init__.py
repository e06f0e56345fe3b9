"""What a person reads: the live table of a running sweep and its closing summary."""

from autotune.report.live import LiveTable
from autotune.report.summary import summary_text
from autotune.report.text import SweepOutline

__all__ = ["LiveTable", "SweepOutline", "summary_text"]
