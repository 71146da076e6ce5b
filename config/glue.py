# CoFrGeNet's tables 2 and 8: eight tasks of GLUE, five seeds, batch 64, the published learning rates.
# Both rates for every model, because the papers give one to the baselines and another to their own models:
#   python finetune.py out/gpt2_xl out/cofrgenet_f config/glue.py --data_dir=glue
# What to expect: the paper's accuracies stand in the table's last rows. A seed of all tasks is some 130
# million tokens: by its FLOPs about an hour for GPT-2 XL on an H100 at 40 % MFU (estimated, not measured).
out_dir = "out/glue"
tasks = ["mnli", "qqp", "qnli", "sst2", "cola", "mrpc", "rte", "wnli"]
learning_rates = [1.25e-5, 2.5e-5]
seeds = 5
