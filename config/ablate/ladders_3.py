# The paper's grid: 3 ladders in an ensemble; on top of any CoFrGeNet.
#   python train.py config/cofrgenet_f.py config/ablate/ladders_3.py --out_dir=out/f_ladders_3
cf_ladders = 3
