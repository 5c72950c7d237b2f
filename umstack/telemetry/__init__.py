"""Figures of running contexts for those who watch: metrics for Prometheus, alert rules and a dashboard.

What a figure is called, counts and means comes from the counter schema; nothing here names a counter twice.
"""

from __future__ import annotations

from umstack.telemetry.serving import ServedMetrics, serve_metrics

__all__ = ["ServedMetrics", "serve_metrics"]
