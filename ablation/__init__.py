"""What ablate.py is made of: the list of runs, and the processes that train them."""
