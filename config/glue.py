# Tables 2 and 8 of the CoFrGeNet paper: eight GLUE tasks, five seeds, batch 64, the published learning
# rates; epochs are ours (finetuning/tasks.py). The papers use one learning rate for the baselines and
# another for their own models. Here every model is fine-tuned at both:
#   python finetune.py out/gpt2_xl out/cofrgenet_f config/glue.py --data_dir=glue
# What to expect: a table whose last rows are the paper's accuracies. One seed of all tasks is about 130
# million tokens: about an hour for GPT-2 XL on an H100 at 40 % MFU (estimated from FLOPs, not measured).
out_dir = "out/glue"
tasks = ["mnli", "qqp", "qnli", "sst2", "cola", "mrpc", "rte", "wnli"]
learning_rates = [1.25e-5, 2.5e-5]
seeds = 5
