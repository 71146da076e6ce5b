# Overlay: RoPE instead of learned positions.
#   python train.py config/study/dense.py config/study/rope.py --out_dir=out/arm
position = "rope"
