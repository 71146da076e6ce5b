# The centre of the study of printed recipes, on top of a module of the papers: cffn_gated (arXiv),
# cffn_product (ICLR), cattn_m, cattn_u, or cattn_m and cffn_gated. All that is printed, with intercepts
# at 1, as the papers do not say where they start. CAttnM is printed with --cattn_strict=True besides.
#   python train.py config/study/dense.py config/study/cffn_gated.py config/study/paper.py --out_dir=out/arm
cf_depth = 7
cf_pole = "clamp"
cf_init = "nanogpt"
cf_intercept = "one"
cf_linear_intercept = True
cf_eval_clip = True
decay_ladders = True
dyadic = True
