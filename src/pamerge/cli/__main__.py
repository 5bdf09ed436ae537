"""``python -m pamerge.cli``."""

from pamerge.cli import main

main()
