"""What finetune.py is made of: GLUE's tasks and files, a classification head, its training, its tables."""
