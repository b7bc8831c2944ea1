"""The page people show each other: tables and figures of a folder of runs, in one file that needs no network."""

from ncollapse.report.content import Report
from ncollapse.report.html import render
from ncollapse.report.layout import make_report, write_report

__all__ = ["Report", "make_report", "render", "write_report"]
