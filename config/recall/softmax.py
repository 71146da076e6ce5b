# Softmax attention with learned positions on MQAR (data/recall/prepare.py): does a mixer find the value
# that followed a key? Overlays, here and in config/study, put other mixers beside the same MLPs.
#   python data/recall/prepare.py
#   python train.py config/recall/softmax.py
#   python evaluate.py out/mqar_softmax --task=mqar
# What to expect: three minutes on one core, five for Gated DeltaNet. No row is read twice. Muon, because
# with AdamW the loss stays longer where it starts.
out_dir = "out/mqar_softmax"
dataset = "data/recall/mqar"

n_layer = 2
n_head = 1
n_embd = 64
block_size = 256
bias = True  # with RoPE, lets scores depend on the distance alone

batch_size = 8
gradient_accumulation_steps = 1
max_iters = 2000
optimizer = "muon"
learning_rate = 2e-3
warmup_iters = 50
lr_schedule = "wsd"  # learning is sudden, and often late: the rate stays high up to the last fifth
dtype = "float32"
compile = False  # on one core compiling takes longer than it saves
log_interval = 100
eval_interval = 500
eval_tokens = 40_960
checkpoint_interval = 2000
keep_checkpoints = 1


def derived(keys):
    """The learning rate falls to a tenth, and that of Muon is five times as high."""
    return {"min_lr": keys["learning_rate"] / 10, "muon_learning_rate": 5 * keys["learning_rate"]}
