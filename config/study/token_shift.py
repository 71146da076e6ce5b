# On top of a model with softmax attention or CAttnM by content: keys hold a map of the token before, too.
#   python train.py config/study/dense.py config/study/rope.py config/study/token_shift.py --out_dir=out/arm
token_shift = True
