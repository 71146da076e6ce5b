# Overlay: A peak learning rate of 8e-3 instead of 4e-3 in config/study/dense.py.
#   python train.py config/study/dense.py config/study/rate_8e3.py --out_dir=out/arm
learning_rate = 8e-3
min_lr = 8e-4
