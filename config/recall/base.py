out_dir = "out/mqar_softmax"
dataset = "data/recall/mqar"

n_layer = 2
n_head = 1
n_embd = 64
block_size = 256

batch_size = 64
gradient_accumulation_steps = 1
max_iters = 600
learning_rate = 4e-3
min_lr = 4e-4
warmup_iters = 60
dtype = "float32"
compile = False
log_interval = 50
eval_interval = 200
eval_tokens = 128_000
checkpoint_interval = 1000
keep_checkpoints = 1
