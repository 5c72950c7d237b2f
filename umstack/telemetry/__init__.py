"""Telemetry: the schema of the counters, reading them, and showing them to other processes and to Prometheus.

What a figure is called, counts and means comes from the counter schema; nothing here names a counter twice.
"""

from __future__ import annotations

from umstack.telemetry.serving import ServedMetrics, serve_metrics

__all__ = ["ServedMetrics", "serve_metrics"]
