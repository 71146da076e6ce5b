# Overlay for a model with softmax attention: it sees a quarter of block_size in three layers and all in the
# fourth, as in nanochat.
#   python train.py config/modern.py config/ablate/windows.py --out_dir=out/modern_windows
attention = "sliding_window,sliding_window,sliding_window,softmax"
