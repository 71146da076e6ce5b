# Overlay: RMSNorm in place of LayerNorm.
#   python train.py config/study/dense.py config/study/rope.py config/study/rmsnorm.py --out_dir=out/arm
norm = "rmsnorm"
