# Overlay: RMSNorm of each head's queries and keys.
#   python train.py config/study/dense.py config/study/rope.py config/study/qk_norm.py --out_dir=out/arm
qk_norm = True
