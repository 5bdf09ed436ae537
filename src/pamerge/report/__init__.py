"""Results to look at: one HTML page that needs nothing else, and the paper's figures."""

from pamerge.report.figures import write_figures
from pamerge.report.page import write_report
from pamerge.report.results import read_results

__all__ = ["read_results", "write_figures", "write_report"]
