"""What scale.py is made of: sizes of a family, the runs of a study, fits, multipliers, page and picture."""
