# Softmax attention that counts positions by RoPE, a stronger dense model than the base.
#   python train.py config/study/base.py config/study/dense_rope.py --out_dir=out/arm
position = "rope"
