"""What compare.py is made of: runs and their arms, the table, the figure, and what else differs."""
