# The paper's grid: ladders of depth 1; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/depth_1.py --out_dir=out/f_depth_1
cf_depth = 1
