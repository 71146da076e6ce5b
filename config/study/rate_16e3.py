# Overlay: A peak learning rate of 16e-3 instead of 4e-3 in config/study/dense.py.
#   python train.py config/study/dense.py config/study/rate_16e3.py --out_dir=out/arm
learning_rate = 16e-3
min_lr = 16e-4
