# full_relative without an embedding of positions.
#   python train.py config/study/dense.py config/study/full_relative_nopos.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
ffn = "cffn_added"
position = "none"
