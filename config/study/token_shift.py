# Overlay:
# For a model with softmax attention or CAttnM by content: each key also holds a map of the previous token.
#   python train.py config/study/dense.py config/study/rope.py config/study/token_shift.py --out_dir=out/arm
token_shift = True
