# Overlay:
# Grouped-query attention with two heads of keys and values: about as many parameters as collapsed CAttnM.
#   python train.py config/study/dense.py config/study/gqa.py --out_dir=out/arm
n_kv_head = 2
