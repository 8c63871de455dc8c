import gzip,sys,time,random
random.seed(1); words=[bytes(random.choices(b"abcdefghij",k=random.randint(3,9))) for _ in range(4000)]
data=b" ".join(random.choices(words,k=400000))
t=time.perf_counter(); gzip.compress(data,int(sys.argv[1])); print("time: %.6f s"%(time.perf_counter()-t))
