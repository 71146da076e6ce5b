"""The parts of compare.py: runs and their arms, the table, the figure, and other differences."""
