# Softmax attention with learned positions on MQAR (data/recall/prepare.py): can a token mixer find the value
# that followed a key? Other mixers are overlays, here and in config/study. Feed-forward layers are the same
# in all of them.
#   python data/recall/prepare.py
#   python train.py config/recall/base.py
#   python evaluate.py out/mqar_softmax --task=mqar
out_dir = "out/mqar_softmax"
dataset = "data/recall/mqar"

n_layer = 2
n_head = 1
n_embd = 64
block_size = 128
bias = True  # lets scores depend on positions alone

batch_size = 32
gradient_accumulation_steps = 1
max_iters = 1000
learning_rate = 4e-3
min_lr = 4e-4
warmup_iters = 50
lr_schedule = "wsd"  # the rate stays high until the last fifth: the task is learned suddenly
dtype = "float32"
compile = False  # on one core compiling takes longer than it saves
log_interval = 50
eval_interval = 500
eval_tokens = 51_200
checkpoint_interval = 1000
keep_checkpoints = 1


def derived(keys):
    """The learning rate falls to a tenth, whatever its peak."""
    return {"min_lr": keys["learning_rate"] / 10}
