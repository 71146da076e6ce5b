# The arXiv paper's CoFrGeNet to the letter, as config/paper/cofrgenet.py has it.
#   python train.py config/study/base.py config/study/paper_full.py --out_dir=out/arm
attention = "cattn_m"
ffn = "cffn_gated"
cffn_gate = "self"
cf_ladders = 7
cf_depth = 7
cf_pole = "clamp"
cf_eps = 0.01
cf_init = "nanogpt"
cf_eval_clip = True
decay_ladders = True
dyadic = True
