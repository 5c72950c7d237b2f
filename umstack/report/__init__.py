"""The report on a capture: every analysis as Parquet, and one HTML page that says what they found."""

from umstack.report.run import Report, ReportOptions, make_report

__all__ = ["Report", "ReportOptions", "make_report"]
