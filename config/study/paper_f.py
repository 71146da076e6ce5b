# The arXiv paper's CoFrGeNet-F to the letter, as config/paper/cofrgenet_f.py has it.
#   python train.py config/study/base.py config/study/paper_f.py --out_dir=out/arm
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
