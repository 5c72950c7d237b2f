"""The report on captures: every analysis as Parquet, and one HTML page with the findings."""

from umstack.report.run import Report, ReportOptions, make_report, make_report_of_tables

__all__ = ["Report", "ReportOptions", "make_report", "make_report_of_tables"]
