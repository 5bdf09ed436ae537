"""``python -m pamerge``."""

from pamerge.cli import main

main()
