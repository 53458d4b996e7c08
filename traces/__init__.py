"""Trace files: the recorded intervals of each rank of a training job."""

from traces.job_trace import JobTrace, load_job_trace, load_job_traces
from traces.kineto import load_kineto
from traces.trace import Category, ReadReport, Trace, TraceColumns

__all__ = [
    "Category",
    "JobTrace",
    "ReadReport",
    "Trace",
    "TraceColumns",
    "load_job_trace",
    "load_job_traces",
    "load_kineto",
]
