# Overlay: causal BigBird with blocks of 8 tokens: the first block, the token's own block, the one before it
# and a random one.
#   python train.py config/recall/softmax.py config/recall/bigbird.py --out_dir=out/bigbird
attention = "bigbird"
bigbird_block = 8
bigbird_global = 1
bigbird_window = 3
bigbird_random = 1
