"""The parts of bench.py: one process per model, the measurements in it, and the report."""
