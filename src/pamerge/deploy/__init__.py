"""Shipping a network: one weights file, a small graph for each subset of tasks, and what each costs on the clock."""

from pamerge.deploy.export import Bundle, export_onnx
from pamerge.deploy.latency import Latency, chart, measure, table
from pamerge.deploy.program import export_program

__all__ = ["Bundle", "Latency", "chart", "export_onnx", "export_program", "measure", "table"]
