# A peak learning rate of 8e-3 in place of the base's 4e-3.
#   python train.py config/study/dense.py config/study/rate_8e3.py --out_dir=out/arm
learning_rate = 8e-3
min_lr = 8e-4
