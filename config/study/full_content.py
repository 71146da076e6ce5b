# CAttnM with content in four heads, and cffn_added.
#   python train.py config/study/base.py config/study/full_content.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_content = True
ffn = "cffn_added"
