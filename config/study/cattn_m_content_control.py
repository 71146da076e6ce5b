# The same with linear scores.
#   python train.py config/study/base.py config/study/cattn_m_content_control.py --out_dir=out/arm
attention = "cattn_m"
cattn_heads = 4
cattn_content = True
cf_control = True
