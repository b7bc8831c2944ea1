"""The page people show each other: tables and figures of a folder of runs, in one file that needs no network."""

from ncollapse.report.page import Report, make_report, render, write_report

__all__ = ["Report", "make_report", "render", "write_report"]
