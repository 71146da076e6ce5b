# Softmax attention with RoPE, and the product of two linear maps.
#   python train.py config/study/base.py config/study/cffn_product_control_rope.py --out_dir=out/arm
position = "rope"
ffn = "cffn_product"
cf_control = True
