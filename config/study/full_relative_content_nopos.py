# cattn_m_content_nopos and cffn_added.
#   python train.py config/study/dense.py config/study/full_relative_content_nopos.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_relative = True
cattn_content = True
position = "none"
ffn = "cffn_added"
