"""The parts of finetune.py: GLUE's tasks and files, a classification head, its training and its tables."""
