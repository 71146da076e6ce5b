# Overlay:
# The printed recipe, from which the study of printed recipes varies one key at a time. Goes on top of a
# module of the papers: cffn_gated (arXiv), cffn_product (ICLR), cattn_m, cattn_u, or cattn_m and
# cffn_gated.
# The papers do not say where intercepts start: here at 1. As printed, CAttnM also needs
# --cattn_strict=True.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/paper.py --out_dir=out/arm
cf_depth = 7
cf_pole = "clamp"
cf_init = "nanogpt"
cf_intercept = "one"
cf_linear_intercept = True
cf_eval_clip = True
decay_ladders = True
dyadic = True
